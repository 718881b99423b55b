// Renders the formulas of a page, which Markdown has marked. No other text is searched.
document$.subscribe(({ body }) => {
  for (const formula of body.querySelectorAll(".arithmatex")) {
    renderMathInElement(formula, {
      delimiters: [
        { left: "\\[", right: "\\]", display: true },
        { left: "\\(", right: "\\)", display: false },
      ],
    })
    keepWithPunctuation(formula)
  }
})

// No line begins with the comma or the bracket that follows a formula.
function keepWithPunctuation(formula) {
  const next = formula.nextSibling
  const marks = formula.matches("span") && next?.nodeType === Node.TEXT_NODE
    ? next.data.match(/^[.,;:)?]+/) : null
  if (!marks) return
  next.data = next.data.slice(marks[0].length)
  const line = document.createElement("span")
  line.className = "formula-in-line"
  formula.before(line)
  line.append(formula, marks[0])
}
