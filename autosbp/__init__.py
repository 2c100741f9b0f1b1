"""autosbp: find, explain and run the fastest way to train a PyTorch model on a GPU cluster.

Importing this package imports neither torch nor numpy; submodules are imported where they are used.
"""

__version__ = "0.1.0"
