"""HTML pages of charts, for `cpc quickstart`, `cpc calibrate` and `cpc monitor`."""
