"""The situations that this project was born from, each as a table: `python -m tests.bench.situations`.

growing        6: a slow store, and accuracy over time            (fashion, ways, learner, curves)
busy_loop      2: a loop's own Python beside 600 MB/s
recordings     1: sound files, and an input_fn that starts over
segmentation   4: images with one-hot label maps, in Keras         (steps: what each step costs)
fed            3: batches fed by Python, by queues, by the core
moved_out      5: a slow step moved out of the input path

report, places and __main__ are what they share.
"""
