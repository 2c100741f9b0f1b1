"""Authentication: API keys, scopes, tenants and rate limits."""
