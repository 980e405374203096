"""Sources of a package in four languages: cut into chunks, made into holes, filled and put back."""
