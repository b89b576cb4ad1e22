"""Who may call: TLS, API keys, their tenants and limits, and what strangers may read."""
