"""Worksheets: a starter file for each lab, and the grading of an answer in a process of its own."""
