const css = getComputedStyle(document.documentElement);
const color = name => css.getPropertyValue(name).trim();
const series = i => color("--s" + i % 8);
const byId = id => document.getElementById(id);
const size = mib => mib >= 1024 ? +(mib / 1024).toPrecision(3) + " GiB"
                                : +mib.toPrecision(3) + " MiB";
const tokens = n => n >= 1024 && n % 1024 === 0 ? n / 1024 + "k" : String(n);
const power = v => Number.isInteger(+Math.log10(v).toFixed(9))
  ? (v < 0.001 ? v.toExponential(0) : String(+v.toPrecision(1))) : "";
// 1 MiB, 4 MiB, 16 MiB...: the powers of 4 inside the axis.
const sizeTicks = scale => {
  scale.ticks = [];
  for (let v = 1 / 1024; v <= scale.max; v *= 4) {
    if (v >= scale.min) scale.ticks.push({ value: v });
  }
};

Chart.defaults.animation = false;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.color = color("--muted");
Chart.defaults.borderColor = color("--line");
Chart.defaults.font.size = 12;
Chart.defaults.plugins.legend.position = "bottom";
Chart.defaults.plugins.legend.labels.usePointStyle = true;
Object.assign(Chart.defaults.plugins.legend.labels, { boxWidth: 7, boxHeight: 7, padding: 16 });

const line = (row, data) => ({
  label: row.name, data, borderColor: series(row.index), backgroundColor: series(row.index),
  borderWidth: 2, pointRadius: 3, tension: 0, clip: 8
});
const axis = (text, extra) => Object.assign({ title: { display: true, text } }, extra);
