"""Steps and answers, each as one HTML file that needs nothing else.

page              a template with its style and scripts inside
run_report        what one step's page says, and how several steps differ
answer_tables     the answer to a question: sentences, and tables with bars
answer_page       how it looks
timeline_data     what the scripts draw, and which numbers of the profile it rests on

Templates, style and scripts lie beside these modules.
"""
