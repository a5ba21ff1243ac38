"""Who may ask: keys, failed logins, and the origins of web pages."""
