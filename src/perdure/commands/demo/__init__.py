"""`perdure demo`: an agent is killed again and again, and a verifier says what became of what it had promised."""
