"""What ended, as tables: bronze as it was, silver by runs and deliveries, gold by hours."""
