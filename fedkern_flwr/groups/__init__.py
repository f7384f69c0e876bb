"""Users in groups: the messages of HierarchicalSVM, who belongs where, consensus."""
