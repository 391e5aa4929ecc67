"""The side that we call: vLLM replicas."""
