#include "verbena/benchmarks/parameters/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_replace.h"

namespace verbena::benchmarks {
namespace {

// The picture, in pixels, and the frame of its curves.
constexpr double kWidth = 640, kHeight = 400;
constexpr double kLeft = 80, kRight = 480, kTop = 50, kBottom = 340;
constexpr const char* kColors[] = {"#0b62a4", "#c1440e", "#2e7d32", "#6a1b9a", "#795548"};

std::string Number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

// The next of 1, 2, 5, 10, 20, … at or above `value`.
double RoundUp(double value) {
  const double decade = std::pow(10, std::floor(std::log10(value)));
  for (double step : {1.0, 2.0, 5.0}) {
    if (decade * step >= value) return decade * step;
  }
  return decade * 10;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

class Picture {
 public:
  explicit Picture(const Comparison& comparison) : data_(comparison) {
    double top = 0;
    for (const Curve& curve : comparison.curves) {
      for (double y : curve.y) top = std::max(top, y);
    }
    max_y_ = top > 0 ? RoundUp(top) : 1;
    min_x_ = std::log2(comparison.x.front());
    max_x_ = std::max(std::log2(comparison.x.back()), min_x_ + 1);
  }

  std::string Draw(const std::string& device) {
    out_ = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
        R"(font-family="sans-serif" font-size="12">)"
        "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kWidth, kHeight);
    Text(kLeft, 25, "start", fmt::format("{} ({})", data_.title, device));
    DrawAxes();
    for (size_t i = 0; i < data_.curves.size(); ++i) DrawCurve(i);
    return out_ + "</svg>\n";
  }

 private:
  double X(double x) const {
    return kLeft + (std::log2(x) - min_x_) / (max_x_ - min_x_) * (kRight - kLeft);
  }
  double Y(double y) const { return kBottom - y / max_y_ * (kBottom - kTop); }

  void Text(double x, double y, const char* anchor, const std::string& text) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                        anchor, Escaped(text));
  }
  void Line(double x1, double y1, double x2, double y2, const char* color) {
    out_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1,
        x2, y2, color);
  }

  void DrawAxes() {
    for (int i = 0; i <= 5; ++i) {
      const double y = max_y_ * i / 5;
      Line(kLeft, Y(y), kRight, Y(y), i == 0 ? "black" : "#dddddd");
      Text(kLeft - 6, Y(y) + 4, "end", Number(y));
    }
    for (double x : data_.x) {
      Line(X(x), kBottom, X(x), kBottom + 5, "black");
      Text(X(x), kBottom + 20, "middle", fmt::format("{:g}", x));
    }
    Text((kLeft + kRight) / 2, kBottom + 42, "middle", data_.x_title);
    Text(kLeft - 60, kTop - 10, "start", data_.y_title);
  }

  void DrawCurve(size_t index) {
    const Curve& curve = data_.curves[index];
    const char* color = kColors[index % std::size(kColors)];
    std::string points;
    for (size_t i = 0; i < curve.y.size(); ++i) {
      if (curve.y[i] == 0) continue;
      points += fmt::format("{:.1f},{:.1f} ", X(data_.x[i]), Y(curve.y[i]));
      out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                          X(data_.x[i]), Y(curve.y[i]), color);
    }
    out_ +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                    points, color);
    const double y = kTop + 10 + 20 * static_cast<double>(index);
    Line(kRight + 12, y, kRight + 32, y, color);
    Text(kRight + 38, y + 4, "start", curve.name);
  }

  const Comparison& data_;
  double max_y_, min_x_, max_x_;
  std::string out_;
};

}  // namespace

std::string ToTable(const Comparison& comparison) {
  size_t width = comparison.x_title.size();
  std::string out =
      fmt::format("{} [{}]\n  {}", comparison.title, comparison.y_title, comparison.x_title);
  for (const Curve& curve : comparison.curves) out += fmt::format("  {:>12}", curve.name);
  for (size_t i = 0; i < comparison.x.size(); ++i) {
    out += fmt::format("\n  {:>{}g}", comparison.x[i], width);
    for (const Curve& curve : comparison.curves) {
      out += fmt::format("  {:>12}", curve.y[i] == 0 ? "-" : Number(curve.y[i]));
    }
  }
  return out + "\n";
}

std::string ToJsonLines(const Comparison& comparison, const std::string& device) {
  std::string out;
  for (const Curve& curve : comparison.curves) {
    for (size_t i = 0; i < curve.y.size(); ++i) {
      out += fmt::format(
          R"({{"bench":"parameters","device":"{}","comparison":"{}","curve":"{}","x":{:g},"y":{}}})"
          "\n",
          device, comparison.name, curve.name, comparison.x[i],
          curve.y[i] == 0 ? "null" : fmt::format("{:.6g}", curve.y[i]));
    }
  }
  return out;
}

std::string ToSvg(const Comparison& comparison, const std::string& device) {
  return Picture(comparison).Draw(device);
}

}  // namespace verbena::benchmarks
