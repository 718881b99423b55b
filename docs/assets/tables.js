// The columns of long tables sort when their heads are clicked or given Enter.
document$.subscribe(({ body }) => {
  for (const table of body.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")]
    if (rows.length < 10) continue
    table.querySelectorAll("th").forEach((head, column) => {
      let down = true
      const sort = () => {
        const value = (row) => row.cells[column].textContent.trim()
        rows.sort((a, b) => compare(value(a), value(b)) * (down ? 1 : -1))
        down = !down
        table.tBodies[0].append(...rows)
      }
      head.tabIndex = 0
      head.classList.add("sorts")
      head.addEventListener("click", sort)
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort())
    })
  }
})

// Numbers are ordered by size; texts come after them, such as "3 of 5 seeds".
function compare(a, b) {
  const number = (text) => / of /.test(text) ? NaN : parseFloat(text.replaceAll(",", ""))
  const [x, y] = [a, b].map(number)
  if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || a.localeCompare(b)
  return x - y
}

// Wide tables are lists on phones (site.css): each cell then shows the head of its column.
document$.subscribe(({ body }) => {
  for (const table of body.querySelectorAll("article table")) {
    const heads = [...table.querySelectorAll("thead th")].map((th) => th.textContent)
    if (heads.length <= 5) continue
    table.dataset.wide = ""
    for (const row of table.tBodies[0].rows)
      [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column]))
  }
})

// Tables with a column "traits" are filtered by words in a row, and by traits that it needs.
document$.subscribe(({ body }) => {
  const tables = [...body.querySelectorAll("article table")].filter((table) =>
    table.querySelector("th:last-child")?.textContent === "traits")
  if (!tables.length) return
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows])
  const traits = (row) => row.lastElementChild.textContent.split(", ")
  const form = document.createElement("form")
  form.className = "filter"
  form.innerHTML = '<input type="search" placeholder="Filter all tables" aria-label="Words">'
  for (const trait of new Set(rows.flatMap(traits)))
    if (trait) form.innerHTML += `<label><input type="checkbox" value="${trait}">${trait}</label>`
  const show = () => {
    const words = form[0].value.toLowerCase().split(/\s+/)
    const needed = [...form.querySelectorAll(":checked")].map((box) => box.value)
    for (const row of rows) {
      const text = row.textContent.toLowerCase()
      row.hidden = !words.every((word) => text.includes(word))
        || !needed.every((trait) => traits(row).includes(trait))
    }
  }
  form.addEventListener("input", show)
  form.addEventListener("submit", (event) => event.preventDefault())
  const first = tables[0].closest(".md-typeset__scrollwrap") ?? tables[0]
  first.before(form)
})
