"""Whether a plan is ever slower than a strategy that its constraints could have named."""
