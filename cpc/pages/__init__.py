"""HTML pages of charts that `cpc quickstart` and `cpc calibrate` write."""
