"""Shadow. In: logged, labelled requests. Out: does a challenger pay? Why: both models judged on the same requests."""
