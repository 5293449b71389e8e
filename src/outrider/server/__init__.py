"""An HTTP server that OpenAI's clients can talk to."""
