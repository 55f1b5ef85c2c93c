"""perdure: a runtime for AI agents that survive."""
