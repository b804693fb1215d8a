"""What the glue to JAX and to TensorFlow has in common: facts of each op, and how they are used.

``table`` has a row for each op that has a gradient or updates its arguments; ``op`` says what the
columns mean and makes functions of rows; ``planned`` has arrays without memory, with which a plain
function tells the shapes of its results. No framework is imported here.
"""
