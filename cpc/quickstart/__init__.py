"""`cpc quickstart`: from nothing to a probed, monitored representation in ten minutes on two cores."""
