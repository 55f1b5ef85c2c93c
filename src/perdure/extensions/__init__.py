"""Bundles of hooks, tools and sections that ship with perdure: permissions, sub-agents."""
