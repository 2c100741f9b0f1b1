"""The HTTP edge: what happens to every request before its route and after it."""
