"""One GPU: what is predicted of it, and what then happens (see ``__main__``)."""
