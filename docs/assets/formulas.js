// Renders the formulas of a page, which Markdown has marked. No other text is searched.
document$.subscribe(({ body }) => {
  for (const formula of body.querySelectorAll(".arithmatex")) {
    renderMathInElement(formula, {
      delimiters: [
        { left: "\\[", right: "\\]", display: true },
        { left: "\\(", right: "\\)", display: false },
      ],
    })
  }
})
