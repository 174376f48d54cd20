"""`cpc calibrate`: every estimator of information against truths in closed form."""
