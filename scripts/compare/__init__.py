"""`pdm run compare`: the learner's functions beside the reference's."""
