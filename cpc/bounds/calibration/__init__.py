"""`cpc calibrate`: measurement of estimators of information on tasks with known information."""
