"""The hardware report: what the course does on one machine, in a form that can be shared."""
