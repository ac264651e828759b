// Draws every chart whose data stands beside its canvas.
const chartTypes = { line: "line", points: "scatter", bars: "bar" };
for (const data of document.querySelectorAll(".plot > script")) {
  const chart = JSON.parse(data.textContent);
  const named = chart.categories.length > 0;
  const scale = side => {
    if (side === chart.x && named) return axis(side.title, { type: "category" });
    const extra = { type: side.log ? "logarithmic" : "linear" };
    // As they are: the library's own style writes small ones as 5.00000E-5.
    const plain = v => v.toLocaleString("en", { maximumSignificantDigits: 6 });
    extra.ticks = { callback: side.log ? power : plain };
    if (side === chart.y && chart.kind === "bars") extra.beginAtZero = true;
    return axis(side.title, extra);
  };
  new Chart(data.previousElementSibling, {
    type: chartTypes[chart.kind],
    data: {
      labels: named ? chart.categories : undefined,
      datasets: chart.series.map(s => ({
        label: s.name,
        data: named ? chart.categories.map((_, i) => (s.points.find(p => p.x === i) || {}).y ?? null)
                    : s.points,
        borderColor: series(s.color),
        backgroundColor: s.marked ? series(s.color) : "transparent",
        borderWidth: chart.kind === "bars" ? 0 : 2,
        pointRadius: chart.kind === "points" ? 7 : 3,
        pointHoverRadius: 9, tension: 0, clip: 12
      }))
    },
    options: { scales: { x: scale(chart.x), y: scale(chart.y) },
               plugins: { legend: { display: chart.series.length > 1 } } }
  });
}
