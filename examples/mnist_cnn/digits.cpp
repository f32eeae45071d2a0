// Draws digits as distorted polylines.
#include "digits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "random.hpp"

namespace mnist {
namespace {

constexpr int kSize = 28;
constexpr std::size_t kDigitPixels = std::size_t{kSize} * kSize;
constexpr float kPi = std::numbers::pi_v<float>;

struct Point {
  float x = 0.0F;
  float y = 0.0F;
};
using Stroke = std::vector<Point>;
using Shape = std::vector<Stroke>;

/** Part of an ellipse; angles in half turns, 0 to the right, 0.5 downwards. */
Stroke arc(Point centre, float radius_x, float radius_y, float from, float to) {
  const int pieces = std::max(4, static_cast<int>(std::abs(to - from) * 6.0F));
  Stroke stroke;
  for (int i = 0; i <= pieces; ++i) {
    const float angle =
        kPi * (from + (to - from) * static_cast<float>(i) / static_cast<float>(pieces));
    stroke.push_back(
        {centre.x + radius_x * std::cos(angle), centre.y + radius_y * std::sin(angle)});
  }
  return stroke;
}

/** The digits in a square from (-1, -1), top left, to (1, 1). */
std::array<Shape, 10> make_shapes() {
  return {{
      {arc({0, 0}, 0.6F, 0.95F, -0.5F, 1.5F)},
      {{{-0.35F, -0.6F}, {0.1F, -0.95F}, {0.1F, 0.0F}, {0.1F, 0.95F}}},
      {arc({0, -0.45F}, 0.55F, 0.5F, -1.0F, 0.15F),
       {{0.5F, -0.25F}, {0.0F, 0.4F}, {-0.6F, 0.95F}, {0.0F, 0.92F}, {0.65F, 0.95F}}},
      {arc({-0.05F, -0.47F}, 0.55F, 0.48F, -0.9F, 0.5F),
       arc({-0.05F, 0.47F}, 0.6F, 0.48F, -0.5F, 0.9F)},
      {{{0.15F, -0.95F}, {-0.3F, -0.3F}, {-0.65F, 0.3F}, {0.0F, 0.3F}, {0.7F, 0.3F}},
       {{0.3F, -0.2F}, {0.3F, 0.4F}, {0.3F, 0.95F}}},
      {{{0.55F, -0.95F}, {0.0F, -0.93F}, {-0.45F, -0.95F}, {-0.5F, -0.2F}},
       arc({-0.05F, 0.35F}, 0.6F, 0.58F, -0.75F, 0.8F)},
      {{{0.4F, -0.95F}, {-0.1F, -0.6F}, {-0.5F, 0.0F}, {-0.55F, 0.45F}},
       arc({0, 0.45F}, 0.55F, 0.5F, -1.0F, 1.0F)},
      {{{-0.6F, -0.9F}, {0.0F, -0.92F}, {0.6F, -0.9F}, {0.2F, -0.1F}, {-0.15F, 0.95F}}},
      {arc({0, -0.48F}, 0.45F, 0.45F, 0.5F, 2.5F), arc({0, 0.48F}, 0.55F, 0.47F, -0.5F, 1.5F)},
      {arc({0, -0.42F}, 0.5F, 0.5F, 0.0F, 2.0F), {{0.5F, -0.42F}, {0.45F, 0.2F}, {0.2F, 0.95F}}},
  }};
}

/** How one image differs from the plain shape: an affine map, then a bend, in pixels. */
class Distortion {
 public:
  explicit Distortion(Random& random)
      : turn_(random.uniform(-0.3F, 0.3F)),
        shear_(random.uniform(-0.35F, 0.35F)),
        width_(random.uniform(6.5F, 10.5F)),
        height_(random.uniform(7.5F, 10.5F)),
        shift_{random.uniform(11.5F, 16.5F), random.uniform(11.5F, 16.5F)},
        bend_{random.uniform(-1.6F, 1.6F), random.uniform(-1.6F, 1.6F)},
        phase_(random.uniform(-kPi, kPi)) {}

  Point operator()(Point p) const {
    const float x = width_ * (p.x - shear_ * p.y);
    const float y = height_ * p.y;
    const float turned_x = std::cos(turn_) * x - std::sin(turn_) * y;
    const float turned_y = std::sin(turn_) * x + std::cos(turn_) * y;
    return {shift_.x + turned_x + bend_.x * std::sin(2.0F * p.y + phase_),
            shift_.y + turned_y + bend_.y * std::sin(2.0F * p.x + phase_)};
  }

 private:
  float turn_, shear_, width_, height_;
  Point shift_, bend_;
  float phase_;
};

/** Draws a line with soft edges; where lines overlap, the brighter value stays. */
void draw_line(Point a, Point b, float radius, float ink, float* image) {
  const float reach = radius + 1.0F;
  const auto clamp = [](float v) { return std::clamp(static_cast<int>(v), 0, kSize - 1); };
  const int left = clamp(std::min(a.x, b.x) - reach), right = clamp(std::max(a.x, b.x) + reach);
  const int top = clamp(std::min(a.y, b.y) - reach), bottom = clamp(std::max(a.y, b.y) + reach);
  const Point along{b.x - a.x, b.y - a.y};
  const float inverse = 1.0F / std::max(along.x * along.x + along.y * along.y, 1e-6F);
  for (int row = top; row <= bottom; ++row) {
    for (int column = left; column <= right; ++column) {
      const Point p{static_cast<float>(column) - a.x, static_cast<float>(row) - a.y};
      const float t = std::clamp((p.x * along.x + p.y * along.y) * inverse, 0.0F, 1.0F);
      const float distance = std::hypot(p.x - t * along.x, p.y - t * along.y);
      float& pixel = image[row * kSize + column];
      pixel = std::max(pixel, ink * std::clamp(radius + 0.5F - distance, 0.0F, 1.0F));
    }
  }
}

void draw_digit(const Shape& shape, Random& random, std::uint8_t* pixels) {
  std::array<float, kDigitPixels> image{};
  const Distortion distort(random);
  const float radius = random.uniform(0.5F, 1.5F);
  const float ink = random.uniform(150.0F, 255.0F);
  for (const Stroke& stroke : shape) {
    Point last;
    for (std::size_t i = 0; i < stroke.size(); ++i) {
      Point next = distort(stroke[i]);
      next.x += random.uniform(-0.7F, 0.7F);
      next.y += random.uniform(-0.7F, 0.7F);
      if (i > 0) draw_line(last, next, radius, ink, image.data());
      last = next;
    }
  }
  // A stray line, as neighbouring writing leaves it.
  const Point stray{random.uniform(0.0F, 27.0F), random.uniform(0.0F, 27.0F)};
  draw_line(stray, {stray.x + random.uniform(-6.0F, 6.0F), stray.y + random.uniform(-6.0F, 6.0F)},
            0.6F, ink, image.data());
  for (std::size_t i = 0; i < image.size(); ++i) {
    const float noisy = image[i] + random.uniform(-40.0F, 40.0F);
    pixels[i] = static_cast<std::uint8_t>(std::clamp(noisy, 0.0F, 255.0F));
  }
}

}  // namespace

Images generate_digits(std::int64_t count, std::uint64_t seed, std::uint64_t set) {
  const std::array<Shape, 10> shapes = make_shapes();
  Random random(seed, ~set);
  Images images;
  images.labels.resize(static_cast<std::size_t>(count));
  images.pixels.resize(images.labels.size() * kDigitPixels);
  for (std::size_t i = 0; i < images.labels.size(); ++i) {
    const std::uint32_t label = random.below(10);
    images.labels[i] = static_cast<std::uint8_t>(label);
    draw_digit(shapes[label], random, images.pixels.data() + i * kDigitPixels);
  }
  return images;
}

}  // namespace mnist
