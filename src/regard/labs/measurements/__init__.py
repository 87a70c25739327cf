"""What the labs measure with: one module for each set-up, closed form or summary that a lab needs."""
