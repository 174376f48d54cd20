"""`cpc monitor`: a local page that watches runs while they train. Imports no torch: it stays small for days."""
