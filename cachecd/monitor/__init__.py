"""Shows the status document to people and to programs. Every module gets the document as a mapping, and
computes nothing of its own except differences over time.

metrics     the text that Prometheus reads
history     samples of the document: the last ten minutes, two days, and every epoch
http        serves metrics, document, history and page in a thread of its own
page/       the page for a browser
bottleneck  what limits the samplers
doctor      what training waits for, and what would change it
dashboards  writes the dashboard for Grafana and the alerts for Prometheus
"""
