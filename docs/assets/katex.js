// Sets formulas anew whenever the site shows another page.
document$.subscribe(({ body }) => {
  if (typeof renderMathInElement === "undefined") return
  renderMathInElement(body, {
    delimiters: [
      { left: "$$", right: "$$", display: true },
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
  })
})
