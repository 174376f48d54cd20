"""HTML pages of charts: what `cpc quickstart`, `cpc calibrate` and `cpc monitor` share."""
