"""Tables in LaTeX."""

from fedjax_muon.reporting.tables import Cells, latex

EXPECTED = r"""% digits: accuracy in %; mean
\begin{tabular}{lr}
\toprule
algorithm & accuracy, \% \\
\midrule
my\_rule \& \{Muon\} & 89.90 $\pm$ 0.25 \\
a\textbackslash{}b\#\$\textasciitilde{}\textasciicircum{} & $<$1 \\
\bottomrule
\end{tabular}
"""


def test_a_table_with_all_that_latex_takes_for_a_command():
    rows = [("my_rule & {Muon}", "89.90 ± 0.25"), ("a\\b#$~^", "<1")]
    columns = ("algorithm", "accuracy, %")
    assert latex(Cells("digits", "accuracy in %;\nmean", columns, rows)) == EXPECTED
