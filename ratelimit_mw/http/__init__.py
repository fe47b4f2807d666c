"""HTTP: reads client addresses, keys and paths from requests, and builds headers and bodies of responses."""
