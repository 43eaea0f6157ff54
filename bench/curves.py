"""Draws shares over iterations as SVG curves on a logarithmic scale, as in figure 9 of "Clustering
Social Images"."""
import html
import math

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLORS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#c77d0a")
LEAST = 1e-4


def draw(path, title, series, goals=()):
    """Writes an SVG file to `path`. `series` maps names to lists of shares (0 to 1), one per
    iteration; `goals` are (iteration, share, text), where an iteration of None means the last
    one."""
    last = max([len(shares) for shares in series.values()] + [2])
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(iteration, share):
        high = math.log10(max(share, LEAST)) / math.log10(LEAST)
        return LEFT + (iteration - 1) / (last - 1) * inner_width, TOP + high * inner_height

    def text(x, y, label, anchor="middle", size=12):
        return '<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">%s</text>' % (x, y, anchor, size, html.escape(label))

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif">' % (WIDTH, HEIGHT),
             '<rect width="100%" height="100%" fill="white"/>', text(LEFT, 24, title, "start", 15)]
    for share, name in ((1, "100 %"), (0.1, "10 %"), (0.01, "1 %"), (0.001, "0.1 %"), (0.0001, "0.01 %")):
        _, y = place(1, share)
        parts.append('<path d="M%d %.1fH%d" stroke="#ddd"/>' % (LEFT, y, LEFT + inner_width))
        parts.append(text(LEFT - 8, y + 4, name, "end"))
    for iteration in range(1, last + 1, max(1, last // 10)):
        parts.append(text(place(iteration, 1)[0], HEIGHT - BOTTOM + 18, str(iteration)))
    parts.append(text(LEFT + inner_width / 2, HEIGHT - 10, "iteration"))
    for number, (name, shares) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join("%.1f,%.1f" % place(i + 1, share) for i, share in enumerate(shares))
        parts.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>'
                     % (points, color))
        y = TOP + 16 + 20 * number
        parts.append('<path d="M%d %dh22" stroke="%s" stroke-width="2"/>'
                     % (WIDTH - RIGHT + 14, y - 4, color))
        parts.append(text(WIDTH - RIGHT + 42, y, name, "start"))
    for iteration, share, name in goals:
        x, y = place(min(iteration or last, last), share)
        parts.append('<circle cx="%.1f" cy="%.1f" r="4" fill="none" stroke="black"/>' % (x, y))
        parts.append(text(x + 8, y - 6, name, "start", 11))
    with open(path, "w") as f:
        f.write("\n".join(parts + ["</svg>\n"]))
