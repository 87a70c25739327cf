"""The page: one HTML file that runs a model in the browser and shows where it looks."""
