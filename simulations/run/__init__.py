"""What a run is made of: its data, options, plots and report."""
