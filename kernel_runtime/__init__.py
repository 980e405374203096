"""What both packages stand on: compiled code and its emulator, BLAS, checkpoint files, closing.

Nothing in it needs what a learner writes.
"""
