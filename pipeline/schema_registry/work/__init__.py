"""Work on schemas off the event loop."""
