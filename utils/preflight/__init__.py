"""Is this run set up right? ``python -m utils.preflight`` asks before anything is started (docs/preflight.md)."""
