"""`pdm run museum`: bugs that other engines had in production, put into a copy of yours."""
