"""The judge: prompts, client, servers."""
