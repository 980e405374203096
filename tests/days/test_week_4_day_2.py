"""Week 4, day 2: mixture of experts."""
