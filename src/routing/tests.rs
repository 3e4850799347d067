//! What decisions must be: properties over random fleets, every error class, no allocation.
