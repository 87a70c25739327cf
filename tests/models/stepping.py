"""Shared by the laws of models: logits step by step, and how exactly they must agree."""

import torch

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def assert_close(output: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)


def run_steps(model, state, target):
    """Logits after each target token, one step at a time, and the last state."""
    logits = []
    for tokens in target.T:
        step_logits, state = model.step(tokens, state)
        logits.append(step_logits)
    return torch.stack(logits, dim=1) if logits else None, state
