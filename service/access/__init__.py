"""Who may call: API keys, their scopes and tenants, and how often."""
