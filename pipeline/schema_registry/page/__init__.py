"""Page of the registry for browsers."""
